; ModuleID = "pack_f16_avx2"
target triple = "unknown-unknown-unknown"

define  void @pack(ptr %a0, i64 %a1, i64 %a2) nounwind {
entry:
  %v38 = alloca [1 x float]
  br label %body
body:
  %v1 = getelementptr i64, ptr %a0, i64 2
  %v2 = load i64, ptr %v1, align 8
  %v3 = inttoptr i64 %v2 to ptr
  %v4 = mul nsw i64 %a1, 7
  %v5 = getelementptr i64, ptr %v3, i64 %v4
  %v6 = load i64, ptr %a0, align 8
  %v7 = inttoptr i64 %v6 to ptr
  %v8 = getelementptr i64, ptr %v5, i64 1
  %v9 = load i64, ptr %v8, align 8
  %v10 = getelementptr half, ptr %v7, i64 %v9
  %v11 = getelementptr i64, ptr %a0, i64 1
  %v12 = load i64, ptr %v11, align 8
  %v13 = inttoptr i64 %v12 to ptr
  %v14 = load i64, ptr %v5, align 8
  %v15 = getelementptr float, ptr %v13, i64 %v14
  %v16 = getelementptr i64, ptr %a0, i64 3
  %v17 = load i64, ptr %v16, align 8
  %v18 = inttoptr i64 %v17 to ptr
  %v19 = getelementptr i64, ptr %v5, i64 2
  %v20 = load i64, ptr %v19, align 8
  %v21 = getelementptr i64, ptr %v18, i64 %v20
  %v22 = getelementptr i64, ptr %a0, i64 4
  %v23 = load i64, ptr %v22, align 8
  %v24 = inttoptr i64 %v23 to ptr
  %v25 = getelementptr i64, ptr %v5, i64 4
  %v26 = load i64, ptr %v25, align 8
  %v27 = getelementptr i64, ptr %v24, i64 %v26
  %v28 = getelementptr i64, ptr %v5, i64 3
  %v29 = load i64, ptr %v28, align 8
  %v30 = getelementptr i64, ptr %v5, i64 5
  %v31 = load i64, ptr %v30, align 8
  %v32 = getelementptr i64, ptr %v5, i64 6
  %v33 = load i64, ptr %v32, align 8
  %v34 = getelementptr i64, ptr %a0, i64 6
  %v35 = load i64, ptr %v34, align 8
  %v36 = getelementptr i64, ptr %a0, i64 7
  %v37 = load i64, ptr %v36, align 8
  store float 0x0000000000000000, ptr %v38, align 4
  %v39 = icmp slt i64 0, %v35
  br i1 %v39, label %loop, label %done
loop:
  %v40 = phi i64 [0, %body], [%v72, %done.2]
  %v41 = mul nsw i64 %v40, %v37
  %v42 = getelementptr half, ptr %v10, i64 %v41
  %v43 = icmp slt i64 0, %v29
  br i1 %v43, label %loop.2, label %done.2
done:
  %v74 = load float, ptr %v38, align 4
  %v75 = fcmp uno float %v74, 0x0000000000000000
  %v76 = zext i1 %v75 to i64
  %v77 = getelementptr i64, ptr %a0, i64 5
  %v78 = load i64, ptr %v77, align 8
  %v79 = inttoptr i64 %v78 to ptr
  %v80 = getelementptr i64, ptr %v79, i64 %a1
  store i64 %v76, ptr %v80, align 8
  ret void
loop.2:
  %v44 = phi i64 [0, %loop], [%v70, %done.4]
  %v45 = mul nsw i64 %v44, %v35
  %v46 = add nsw i64 %v45, %v40
  %v47 = mul nsw i64 %v46, %v33
  %v48 = getelementptr float, ptr %v15, i64 %v47
  %v49 = getelementptr i64, ptr %v21, i64 %v44
  %v50 = load i64, ptr %v49, align 8
  %v51 = getelementptr half, ptr %v42, i64 %v50
  %v52 = icmp slt i64 0, %v31
  br i1 %v52, label %loop.3, label %done.3
done.2:
  %v72 = add nsw i64 %v40, 1
  %v73 = icmp slt i64 %v72, %v35
  br i1 %v73, label %loop, label %done
loop.3:
  %v53 = phi i64 [0, %loop.2], [%v63, %loop.3]
  %v54 = getelementptr i64, ptr %v27, i64 %v53
  %v55 = load i64, ptr %v54, align 8
  %v56 = getelementptr half, ptr %v51, i64 %v55
  %v57 = load half, ptr %v56, align 2
  %v58 = fpext half %v57 to float
  %v59 = getelementptr float, ptr %v48, i64 %v53
  store float %v58, ptr %v59, align 4
  %v60 = load float, ptr %v38, align 4
  %v61 = fmul float %v58, 0x0000000000000000
  %v62 = fadd float %v60, %v61
  store float %v62, ptr %v38, align 4
  %v63 = add nsw i64 %v53, 1
  %v64 = icmp slt i64 %v63, %v31
  br i1 %v64, label %loop.3, label %done.3
done.3:
  %v65 = icmp slt i64 %v31, %v33
  br i1 %v65, label %loop.4, label %done.4
loop.4:
  %v66 = phi i64 [%v31, %done.3], [%v68, %loop.4]
  %v67 = getelementptr float, ptr %v48, i64 %v66
  store float 0x0000000000000000, ptr %v67, align 4
  %v68 = add nsw i64 %v66, 1
  %v69 = icmp slt i64 %v68, %v33
  br i1 %v69, label %loop.4, label %done.4
done.4:
  %v70 = add nsw i64 %v44, 1
  %v71 = icmp slt i64 %v70, %v29
  br i1 %v71, label %loop.2, label %done.2
}
